"A Hub on loopback: the real ids and commits of the registries, with tiny models and small data sets behind them."
