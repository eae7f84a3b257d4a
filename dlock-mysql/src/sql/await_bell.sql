-- Waits until nobody has a doorbell any more. A server that has become read-only refuses: the doorbell is on another one.
-- In: bell: the doorbell. Out: nothing.
:writable;
DO GET_LOCK(:bell, 86400);
DO RELEASE_LOCK(:bell)
