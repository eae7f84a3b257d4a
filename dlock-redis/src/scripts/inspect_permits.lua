-- permits(fields, wait) returns the holds of permits in the format of inspect.lua, from the lock's
-- fields and the queue. Calls
-- wait(kind, owner, end of the heartbeat) for each waiter.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function permits(fields, wait)
    local holds, held = {'mode', -2, 'permit'}, holders()
    local function hold(who, left, token)
        for _, value in ipairs({owner_of(who), left, token}) do holds[#holds + 1] = value end
    end
    -- The first claim, until a second claim arrives.
    for i = 1, #fields, 2 do
        if fields[i] ~= 'mode' then hold(fields[i], redis.call('PTTL', lock), fields[i + 1]) end
    end
    local found = redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES')
    for i = 1, #found, 2 do
        local left = math.floor((redis.call('ZSCORE', heartbeats, found[i]) or now) - now)
        if left >= 0 and held[found[i]] then
            hold(found[i], left, found[i + 1])
        else
            wait('permit', owner_of(found[i]), now + left)
        end
    end
    return holds
end
