-- Says that the claims are of this boot. Binds: 1 this boot of the host. Answer: none.
UPDATE dlock_store SET boot = ?1 WHERE one = 1
