"""One file per family of models: only its math and its weight map."""
