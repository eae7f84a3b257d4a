-- KEYS: lock, token. ARGV: owner, ttl in ms, token_ttl.
-- Answer: the token as text; the ms that the holder's ttl lasts, -1 for ever; or a status, the other kind of lock there is.
if redis.call('EXISTS', KEYS[1]) == 1 then
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        return drawn(KEYS[2])
    end
    if redis.call('HEXISTS', KEYS[1], 'mode') == 1 then
        return redis.status_reply('rwlock')
    end
    return redis.call('PTTL', KEYS[1])
end
local token = draw(KEYS[2])
redis.call('HSET', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token
