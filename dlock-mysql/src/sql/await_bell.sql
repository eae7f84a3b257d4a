-- Waits until nobody has a doorbell any more. In: bell: the doorbell. Out: nothing.
DO GET_LOCK(:bell, 86400);
DO RELEASE_LOCK(:bell)
