-- Acquires a mutex.
-- KEYS: lock, token.
-- ARGV: owner, ttl in ms, token_ttl, deadline.
-- Reply: the token as text if the owner holds the lock now. Otherwise the ms until the ttl of the
-- other holder ends, or -1 if it has no ttl. Or a status, which is the kind of lock that uses the
-- name instead.
if redis.call('EXISTS', KEYS[1]) == 1 then
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        return draw(KEYS[2], true)
    end
    local mode = redis.call('HGET', KEYS[1], 'mode')
    if mode then return redis.status_reply(mode == 'permit' and mode or 'rwlock') end
    return redis.call('PTTL', KEYS[1])
end
local token = draw(KEYS[2])
redis.call('HSET', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token
