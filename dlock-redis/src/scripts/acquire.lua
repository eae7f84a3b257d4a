-- KEYS: lock, token. ARGV: owner, ttl in ms, token_ttl, deadline.
-- Answer: the token as text, if the owner holds the lock now; the ms until the other holder's ttl ends, -1 if it never does; or a
-- status, the kind of lock that the name is in use for instead.
if redis.call('EXISTS', KEYS[1]) == 1 then
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        return drawn(KEYS[2])
    end
    local mode = redis.call('HGET', KEYS[1], 'mode')
    if mode then return redis.status_reply(mode == 'permit' and mode or 'rwlock') end
    return redis.call('PTTL', KEYS[1])
end
local token = draw(KEYS[2])
redis.call('HSET', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token
