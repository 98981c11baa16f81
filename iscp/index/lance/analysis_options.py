"""The analysis that makes an index's words, in Lance's terms."""

from __future__ import annotations

from typing import Any

from iscp.index.lance.text_analysis import Analyse, analyser
from iscp.index.model.index_definition import DOTLESS, Analysis, Tokenizer


def analyser_of(analysis: Analysis) -> Analyse:
    """Return the function that makes the words of an index's texts, and those of its queries."""
    options: dict[str, Any] = {
        "base_tokenizer": analysis.tokenizer.value,
        "max_token_length": analysis.max_token_length,
        "lower_case": analysis.lower_case,
        "stem": analysis.stem,
        "remove_stop_words": analysis.stop_words,
        "ascii_folding": analysis.ascii_folding,
    }
    if analysis.language:
        options["language"] = analysis.language.capitalize()
    if analysis.tokenizer is Tokenizer.NGRAM:
        options["min_ngram_length"] = analysis.min_ngram
        options["max_ngram_length"] = analysis.max_ngram
        options["prefix_only"] = analysis.prefix_only
    analyse = analyser(options, joins=analysis.tokenizer.has_words)
    if not analysis.folds:
        return analyse
    return lambda texts: analyse([analysis.folded(text) for text in texts])


def folding_of(analysis: Analysis) -> tuple[bool, bool]:
    """Return the arguments `case` and `dotless` of iscp.index.model.graphemes.fold, for texts of this analysis."""
    return analysis.lower_case, analysis.language == DOTLESS
