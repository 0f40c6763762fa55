"""Running a model: the run plan, native handles, tokenizer, sampling, templates, session, generation."""
