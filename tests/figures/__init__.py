"""Measures with the real model what the project promises, and says whether it holds on this machine.

Ratios are formed within one run, the two sides taking turns: a busy machine slows both.
"""
