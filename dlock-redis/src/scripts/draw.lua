-- draw(key, holds) draws the next fencing token and returns it as text. It is the server's clock in
-- µs, or the last token plus one if that is greater. For a claim that already holds, it returns the
-- last token that was drawn. The caller draws the token before it writes the hold. If the key is of
-- another type, draw fails and the lock is not taken.
--
-- The second-last ARGV is token_ttl, the minimum time in ms for which the key stays after the clock
-- has passed the token. With `never`, the key has no ttl. With `none`, the caller wants no token. The
-- token is then `0`, and the key is not touched.
local token_ttl = ARGV[#ARGV - 1]
local function draw(key, holds)
    if token_ttl == 'none' then return '0' end
    local last = redis.call('GET', key)
    if holds and last then return last end
    local now = time[1] .. string.format('%06d', time[2])
    local left = last and redis.call('PTTL', key) or -2
    -- A key without a ttl was created by Redisson, or by a client with token_ttl=never, and gets no
    -- ttl.
    local ends = token_ttl ~= 'never' and left ~= -1
    -- A repeated attempt gets the key's token, so the key lasts at least twice the ttl of the hold,
    -- ARGV[2].
    local keep = ends and math.max(token_ttl, 2 * ARGV[2])
    -- Numbers with the same number of digits are compared as text, which is half a microsecond
    -- faster.
    if not last or #last == #now and last < now or tonumber(last) and tonumber(last) < tonumber(now) then
        if last and #last == #now and (left == -1 or ends and left >= keep) then
            -- Keeps the ttl, and takes a microsecond less than SET with a ttl.
            redis.call('SETRANGE', key, 0, now)
        elseif ends then
            -- Another client may keep tokens for a longer time. The later end counts. The end is late
            -- by an eighth, so that the next draws need not set it.
            redis.call('SET', key, now, 'PX', math.max(left, keep + math.floor(keep / 8)))
        else
            redis.call('SET', key, now)
        end
        return now
    end
    -- The clock is not ahead of the last token. INCR is exact beyond the precision of Lua's
    -- numbers, and fails if the value is not a number.
    redis.call('INCR', key)
    local token = redis.call('GET', key)
    if ends then
        redis.call('PEXPIREAT', key, math.max(math.ceil(token / 1000) + keep, math.floor(now / 1000) + left))
    else
        redis.call('PERSIST', key)
    end
    return token
end
