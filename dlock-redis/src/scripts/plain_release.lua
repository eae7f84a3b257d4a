-- KEYS: key. ARGV: value, channel, publish command. Answer: 1 if the caller held it, else 0. Wakes dlock's waiters.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
redis.call('DEL', KEYS[1])
redis.call(ARGV[3], ARGV[2], '0')
return 1
