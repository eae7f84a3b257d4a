-- KEYS: who. ARGV: the text, empty if the caller does not know it, ttl in ms. Keeps the text for the ttl, or as long as it is kept
-- already. It is in a list, because neither dialect takes a list for a lock.
if ARGV[1] ~= '' and redis.call('LINDEX', KEYS[1], 0) ~= ARGV[1] then
    redis.call('DEL', KEYS[1])
    redis.call('RPUSH', KEYS[1], ARGV[1])
end
return redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2]))
