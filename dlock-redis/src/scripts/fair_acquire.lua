-- KEYS: those of fair.lua, token. ARGV: those of fair.lua, `try` or `wait`, token_ttl, deadline.
-- Answer: as acquire.lua; for a claim that is not granted {ms until it should ask again, 1 if no other waits before it, else 0}.
if redis.call('HEXISTS', lock, owner) == 1 then
    redis.call('PEXPIRE', lock, ttl)
    return drawn(KEYS[5])
end
local mode = redis.call('HGET', lock, 'mode')
if mode then return redis.status_reply(mode == 'permit' and mode or 'rwlock') end
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
-- bury() has removed the head: the waiter that is first now must hear of it.
if head ~= first then wake_head() end
