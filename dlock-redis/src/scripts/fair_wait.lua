-- The end of fair_acquire.lua, for a claim without a grant. Adds the claim to the queue, unless it
-- is a try, and replies.
if ARGV[6] == 'wait' then
    local own_deadline, last = redis.call('ZSCORE', deadlines, owner), redis.call('LINDEX', queue, -1)
    local last_deadline = last and tonumber(redis.call('ZSCORE', deadlines, last)) or now
    -- Each grant by Redisson moves all deadlines one wait timeout earlier. One wait timeout for
    -- each waiter, including this one, is enough.
    local deadline = own_deadline
        and math.min(tonumber(own_deadline), now + redis.call('LLEN', queue) * wait_timeout)
        or last_deadline + wait_timeout
    deadline = math.max(deadline, now + wait_timeout)
    if redis.call('ZADD', deadlines, deadline, owner) == 1 then redis.call('RPUSH', queue, owner) end
    redis.call('ZADD', heartbeats, now + ttl, owner)
    -- A heartbeat stays as long as its waiter may be in the queue. An expired waiter without a
    -- heartbeat would count as foreign.
    redis.call('PEXPIRE', heartbeats, math.max(redis.call('PTTL', heartbeats), ttl, deadline - now))
    for _, key in ipairs({queue, deadlines}) do
        -- The queue has a ttl, because no client empties it if all clients die. While foreign
        -- clients wait it has none, because they do not renew it.
        if has_foreign() then
            redis.call('PERSIST', key)
        else
            redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), ttl, deadline - now + wait_timeout))
        end
    end
end
local left = held and redis.call('PTTL', lock)
    or math.max(1, (redis.call('ZSCORE', heartbeats, head) or redis.call('ZSCORE', deadlines, head) or now) - now)
-- Redisson removes a waiter that sends no attempt within the wait timeout. A third of it leaves a
-- margin.
local max_pause = ARGV[6] == 'wait' and math.max(1, math.floor(wait_timeout / 3)) or left
return {(left < 0 or left > max_pause) and max_pause or left, (not head or head == owner) and 1 or 0}
