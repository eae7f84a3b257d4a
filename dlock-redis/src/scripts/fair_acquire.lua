-- Acquires a fair lock. Continued by fair_wait.lua.
-- KEYS: those of fair.lua, token.
-- ARGV: those of fair.lua, `try` or `wait`, token_ttl, deadline.
-- Reply: that of acquire.lua, except that a claim without a grant gets {ms until its next attempt,
-- 1 if no waiter is ahead of it, else 0}.
if redis.call('HEXISTS', lock, owner) == 1 then
    redis.call('PEXPIRE', lock, ttl)
    return draw(KEYS[5], true)
end
local mode = redis.call('HGET', lock, 'mode')
if mode then return redis.status_reply(mode == 'permit' and mode or 'rwlock') end
local first = redis.call('LINDEX', queue, 0)
remove_expired()
local head = redis.call('LINDEX', queue, 0)
local held = redis.call('EXISTS', lock) == 1
if not held and (not head or head == owner) then
    local token = draw(KEYS[5])
    redis.call('LPOP', queue)
    redis.call('ZREM', heartbeats, owner)
    redis.call('ZREM', deadlines, owner)
    for _, other in ipairs(has_foreign() and redis.call('ZRANGE', deadlines, 0, -1) or {}) do advance(other) end
    redis.call('HSET', lock, owner, 1)
    redis.call('PEXPIRE', lock, ttl)
    return token
end
-- remove_expired() has removed the head, so the new first waiter must be notified.
if head ~= first then wake_head() end
