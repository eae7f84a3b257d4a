-- longest_read(lock, tag) removes dlock's readers without a timeout, because they have expired.
-- Returns the ms until the last of the other readers ends. Returns nil if a reader of Redisson has
-- no timeout. Such a reader may still hold the lock, because Redisson may renew the hash without
-- renewing each timeout.
local function longest_read(lock, tag)
    local longest, fields = 0, redis.call('HGETALL', lock)
    for i = 1, #fields, 2 do
        local who, holds, left = fields[i], tonumber(fields[i + 1]) or 0, -2
        -- A count above 1000 is not a count of holds. A field of another program must not block the
        -- server in this loop.
        for k = 1, holds <= 1000 and holds or 0 do
            left = math.max(left, redis.call('PTTL', tag .. ':' .. who .. ':rwlock_timeout:' .. k))
        end
        if who ~= 'mode' and left < 0 then
            if string.sub(who, -2) == ':0' then redis.call('HDEL', lock, who) else longest = nil end
        end
        longest = longest and math.max(longest, left)
    end
    return longest
end
