-- The end of rw_acquire.lua, for a claim without a grant. Adds the claim to the queue, unless it is
-- a try, and replies.
if ARGV[6] == 'wait' then
    -- The arrival of a new waiter is greater than that of all other waiters, even if the clock was
    -- set back.
    if arrival == math.huge then
        local latest = {redis.call('ZRANGE', writers, -1, -1, 'WITHSCORES')[2], redis.call('ZRANGE', readers, -1, -1, 'WITHSCORES')[2]}
        arrival = time[1] * 1000000 + time[2]
        for _, score in pairs(latest) do arrival = math.max(arrival, tonumber(score) + 1) end
    end
    redis.call('ZADD', queue, arrival, owner)
    redis.call('ZADD', heartbeats, now + ttl, owner)
    for _, key in ipairs({queue, heartbeats}) do
        redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), ttl))
    end
end
local left = mode and redis.call('PTTL', lock) or math.max(1, (redis.call('ZSCORE', heartbeats, blocker) or now) - now)
return {left, arrival < math.huge and arrival or 0}
