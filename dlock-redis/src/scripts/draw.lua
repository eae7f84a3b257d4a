-- draw(key): the next fencing token, as text: the server's clock in µs, or one more than the last where that is greater.
-- Taken before anything is held, so that a key of another type refuses the grant.
local function draw(key)
    local time = redis.call('TIME')
    local now = time[1] .. string.format('%06d', time[2])
    local last = redis.call('GETSET', key, now)
    -- As text where that is as good: it takes half a microsecond less.
    if not last or #last == #now and last < now then
        return now
    end
    if tonumber(last) and tonumber(last) < tonumber(now) then
        return now
    end
    -- The clock stands or went back. INCR counts exactly where Lua's numbers do not, and refuses what is no number.
    redis.call('SET', key, last)
    redis.call('INCR', key)
    return redis.call('GET', key)
end
