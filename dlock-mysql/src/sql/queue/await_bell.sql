-- Waits until no session owns a doorbell. Fails on a server that has become read-only, because the
-- doorbell is on another server. In: bell: the doorbell. Out: nothing.
:writable;
DO GET_LOCK(:bell, 86400);
DO RELEASE_LOCK(:bell)
