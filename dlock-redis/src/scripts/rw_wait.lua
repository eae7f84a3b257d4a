-- The rest of rw_acquire.lua, for a claim that was not granted: joins the line unless it only tries, and answers.
if ARGV[6] == 'wait' then
    -- The arrival of a new waiter is later than that of all others, even if the clock was set back.
    if came == math.huge then
        local latest = {redis.call('ZRANGE', writers, -1, -1, 'WITHSCORES')[2], redis.call('ZRANGE', readers, -1, -1, 'WITHSCORES')[2]}
        came = time[1] * 1000000 + time[2]
        for _, score in pairs(latest) do came = math.max(came, tonumber(score) + 1) end
    end
    redis.call('ZADD', line, came, owner)
    redis.call('ZADD', beats, now + ttl, owner)
    for _, key in ipairs({line, beats}) do
        redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), ttl))
    end
end
local left = mode and redis.call('PTTL', lock) or math.max(1, (redis.call('ZSCORE', beats, behind) or now) - now)
return {left, came < math.huge and came or 0}
