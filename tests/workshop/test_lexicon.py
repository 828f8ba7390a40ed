"""The tables of words agree with themselves."""

from tests.workshop.trees import VERBS, WORDS


def test_principal_parts():
    """Every verb of the table agrees with itself."""
    for verb in WORDS.verbs:
        ich, er, wir = verb.german
        assert verb.particle + wir == verb.infinitive
        assert wir.startswith(ich) and er.endswith("t")
        assert verb.participle.startswith(verb.particle)
        assert verb.auxiliary in ("hat", "ist")
    assert VERBS["einladen"].german == ("lade", "lädt", "laden")
    third = {verb.english_third for verb in WORDS.verbs}
    assert {"carries", "watches", "buys", "loses", "rescues"} <= third
    past = {verb.past for verb in WORDS.verbs}
    assert {"carried", "watched", "loved", "offered", "fled"} <= past
