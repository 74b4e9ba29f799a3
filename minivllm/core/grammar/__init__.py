"""Grammars: from what a request asks for to the tokens that may come next. No torch here."""
