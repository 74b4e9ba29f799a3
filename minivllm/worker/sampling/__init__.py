"""From logits to tokens: ordered stages that change logits, then a choice per row, vectorised over the batch."""
