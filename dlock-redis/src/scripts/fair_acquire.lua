-- KEYS: those of fair.lua, token. ARGV: those of fair.lua, `try` or `wait`, token_ttl.
-- Answer: as acquire.lua, but {ms, 1 if it is the first that waits} while another holds it.
if redis.call('HEXISTS', lock, owner) == 1 then
    redis.call('PEXPIRE', lock, ttl)
    return drawn(KEYS[5])
end
if redis.call('HEXISTS', lock, 'mode') == 1 then
    return redis.status_reply('rwlock')
end
local first = redis.call('LINDEX', queue, 0)
bury()
local head = redis.call('LINDEX', queue, 0)
local held = redis.call('EXISTS', lock) == 1
if not held and (not head or head == owner) then
    local token = draw(KEYS[5])
    redis.call('LPOP', queue)
    redis.call('ZREM', beats, owner)
    redis.call('ZREM', deadlines, owner)
    for _, other in ipairs(has_foreign() and redis.call('ZRANGE', deadlines, 0, -1) or {}) do advance(other) end
    redis.call('HSET', lock, owner, 1)
    redis.call('PEXPIRE', lock, ttl)
    return token
end
if head ~= first then wake_head() end
