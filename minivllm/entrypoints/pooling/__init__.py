"""Pooling models over HTTP: embeddings, classes, scores, rankings."""
