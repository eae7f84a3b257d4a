-- draw(key): the next fencing token, as text: the server's clock in µs, or the last token plus one if that is greater.
-- The caller draws before it writes the hold: if the key is of another type, draw fails, and the lock is not taken.
-- drawn(key): the token of a claim that holds already: the last token that was drawn.
-- The last ARGV but one is token_ttl: for how many ms the key stays after the clock has passed the token, or `never` for a key without a
-- ttl. It is `none` if nobody wants the claim's token: then the token is `0`, and the key is left alone.
local token_ttl = ARGV[#ARGV - 1]
local function draw(key)
    if token_ttl == 'none' then return '0' end
    local time = redis.call('TIME')
    local now = time[1] .. string.format('%06d', time[2])
    local last = redis.call('GET', key)
    local left = last and redis.call('PTTL', key) or -2
    -- A key without a ttl was made by Redisson, or by a client with token_ttl=never: it stays without.
    local ends = token_ttl ~= 'never' and left ~= -1
    -- An attempt that is sent again is answered with the key's token: the key lasts twice the ttl of the hold, ARGV[2], or longer.
    local keep = ends and math.max(token_ttl, 2 * ARGV[2])
    -- Numbers of as many digits are compared as text, which takes half a microsecond less.
    if not last or #last == #now and last < now or tonumber(last) and tonumber(last) < tonumber(now) then
        if ends then
            -- Another client may keep tokens longer than this one: the later end counts.
            redis.call('SET', key, now, 'PX', math.max(left, keep))
        else
            redis.call('SET', key, now)
        end
        return now
    end
    -- The clock is not ahead of the last token. INCR is exact where Lua's numbers are not, and fails if the value is no number.
    redis.call('INCR', key)
    local token = redis.call('GET', key)
    if ends then
        redis.call('PEXPIREAT', key, math.max(math.ceil(token / 1000) + keep, math.floor(now / 1000) + left))
    else
        redis.call('PERSIST', key)
    end
    return token
end
local function drawn(key)
    return token_ttl ~= 'none' and redis.call('GET', key) or draw(key)
end
