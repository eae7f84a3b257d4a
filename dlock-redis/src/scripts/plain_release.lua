-- Releases a mutex of the plain dialect, and wakes dlock's waiters.
-- KEYS: key.
-- ARGV: value, channel, publish command.
-- Reply: 1 if the caller held the lock, else 0.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
redis.call('DEL', KEYS[1])
redis.call(ARGV[3], ARGV[2], '0')
return 1
