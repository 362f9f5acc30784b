"""A mutating fuzzer over everything that decodes bytes from Redis or from the store.

mutation.py makes broken inputs of valid ones, targets.py says who reads them and how they may be refused,
campaign.py runs them. `python -m tests.fuzz --minutes 10` is the long form, tests/unit/test_fuzz.py the short one.
"""
