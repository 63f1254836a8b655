"""The tokenizer: byte-level BPE in which one Chinese character or one digit is one token.

Owns the vocabulary of 6,144 entries: bytes, common characters, Latin and SQL pieces, special
tokens. Lossless: what is not in the vocabulary becomes bytes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from models.training import dialogs, documents, rendering, templates
from models.training.lexicon import HANZI, LEXICON_FILE

VOCAB_SIZE = 6144
SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
_CJK = r"\u2e80-\u9fff\uf900-\ufaff\u3000-\u303f\uff00-\uffef"
_PIECES = (
    rf"[{_CJK}]|\p{{N}}|\n| ?[^\s\p{{N}}\p{{P}}\p{{S}}{_CJK}]+|_?[a-z]+| ?[\p{{P}}\p{{S}}]+|\s"
)
_MARKS = "，。？！：；（）《》“”‘’、【】…·—～％＝＋－×÷　￥｜＠０１２３４５６７８９ＱｑＴＯＰｔｏｐ－／＜＞"  # noqa: E501


def _byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in byte-level BPE."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in kept}
    spare = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(256 + i) for i, byte in enumerate(spare)})
    return letters


LETTERS = _byte_letters()


def pre_tokenizer() -> Any:
    """Each Chinese character, digit and line break alone; words and marks in runs."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def corpus(seed: int = 0) -> list[str]:
    """Text of the kind the model reads: templates and a sample of rendered dialogs."""
    rng = random.Random(seed)
    texts = [template.text for template in templates.load()]
    sampler = dialogs.Sampler(rng)
    for _ in range(30):
        prompt = dialogs.make_prompt(rng)
        texts.append(rendering.prefix(prompt))
        for _ in range(60):
            turns = sampler.dialog(prompt).turns
            texts += [piece.text for piece in rendering.pieces(turns)]
    return texts


def characters(texts: Iterable[str]) -> list[str]:
    """All characters outside ASCII that get a token of their own, in a fixed order."""
    wanted = dict.fromkeys((*HANZI, *_MARKS))
    sources = [passage.text + passage.title for passage in documents.demo()]
    if LEXICON_FILE.is_file():
        sources.append(LEXICON_FILE.read_text(encoding="utf-8"))
    seen = sorted(set("".join((*texts, *sources))))
    wanted.update(dict.fromkeys(char for char in seen if "⺀" <= char <= "鿿"))
    return list(wanted)


def latin_merges(texts: Iterable[str], count: int) -> list[tuple[str, str]]:
    """The ``count`` best merges of the Latin part of ``texts``."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + count, show_progress=False, min_frequency=2,
        initial_alphabet=list(LETTERS.values()),
    )  # fmt: skip
    marks = "|".join(re.escape(token) for token in SPECIAL_TOKENS)
    clean = [re.sub(rf"[^\x00-\x7f]+|{marks}", "\n", text) for text in texts]
    model.train_from_iterator(clean, trainer)
    import json

    found = json.loads(model.to_str())["model"]["merges"]
    return [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in found]


def build(seed: int = 0) -> Tokenizer:
    """The tokenizer, the same for the same templates and seed."""
    texts = corpus(seed)
    vocab = {letter: i for i, letter in enumerate(LETTERS.values())}
    merges: list[tuple[str, str]] = []

    def merge(left: str, right: str) -> str:
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append((left, right))
        return left + right

    for char in characters(texts):
        token, *rest = (LETTERS[byte] for byte in char.encode())
        for letter in rest:
            token = merge(token, letter)
    room = VOCAB_SIZE - len(SPECIAL_TOKENS) - len(vocab)
    assert room > 500, f"only {room} entries left for Latin pieces"
    for left, right in latin_merges(texts, room):
        if len(vocab) + len(SPECIAL_TOKENS) == VOCAB_SIZE:
            break
        merge(left, right)
    for index in range(VOCAB_SIZE - len(SPECIAL_TOKENS) - len(vocab)):
        vocab[f"<|unused_{index}|>"] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS[:3]]
    )
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in SPECIAL_TOKENS[3:]]
    )
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def save(tokenizer: Tokenizer, out_dir: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = rendering.CHAT_TEMPLATE.read_text(encoding="utf-8")
    fast.save_pretrained(out_dir)
