-- Records the host's boot to which the claims belong. In: 1 id of this boot. Out: nothing.
UPDATE dlock_store SET boot = ?1 WHERE one = 1
