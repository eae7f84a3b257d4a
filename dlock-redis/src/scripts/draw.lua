-- draw(key): the next fencing token, as text: the server's clock in µs, or one more than the last where that is greater.
-- The caller draws before it writes anything, so that a key of another type refuses the grant.
-- drawn(key): the token of a claim that holds already, the last that was drawn.
-- The last ARGV is token_ttl: how many ms the key outlives the moment when the clock has passed the token, or `never`; or `none`
-- for a claim of which nobody wants the token: it is `0`, and the key is left alone.
local token_ttl = ARGV[#ARGV]
local function draw(key)
    if token_ttl == 'none' then return '0' end
    local time = redis.call('TIME')
    local now = time[1] .. string.format('%06d', time[2])
    local last = redis.call('GET', key)
    local left = last and redis.call('PTTL', key) or -2
    -- A key without an end is Redisson's, or a client's that keeps tokens for ever: nobody gives it one.
    local ends = token_ttl ~= 'never' and left ~= -1
    -- At least as long as a holder may ask again whether it was granted. ARGV[2] is the ttl of its hold.
    local keep = ends and math.max(token_ttl, 2 * ARGV[2])
    -- As text where that is as good: it takes half a microsecond less.
    if not last or #last == #now and last < now or tonumber(last) and tonumber(last) < tonumber(now) then
        if ends then
            -- Another client may keep tokens longer: the later end counts.
            redis.call('SET', key, now, 'PX', math.max(left, keep))
        else
            redis.call('SET', key, now)
        end
        return now
    end
    -- The clock stands or went back. INCR counts exactly where Lua's numbers do not, and refuses what is no number.
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
