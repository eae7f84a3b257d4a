-- Rings those who wait for a claim that goes on, and takes its doorbell again behind them. In: bell: the doorbell. Out: nothing.
DO RELEASE_LOCK(:bell);
DO GET_LOCK(:bell, 1)
