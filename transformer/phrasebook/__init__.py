"""The phrasebook: a small grammar that makes French-English sentence pairs."""
