-- KEYS: two for each hold: its lock, and for a read hold its timeout, for a write hold the token, else the lock again.
-- ARGV: the field of each hold, then the ttl in ms of each. Answer: for each hold 1 if it is renewed, 0 if it is gone.
local answer, holds = {}, #ARGV / 2
for i = 1, holds do
    local lock, beside, field, ttl = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i], ARGV[holds + i]
    local held = redis.pcall('HEXISTS', lock, field) == 1
    if held and string.sub(field, -6) == ':write' then
        -- A downgrade is answered with the writer's token, so the token must not end before the hold.
        local left = redis.call('PTTL', beside)
        if left >= 0 and left < 2 * ttl then redis.call('PEXPIRE', beside, 2 * ttl) end
    elseif held and beside ~= lock then
        held = redis.call('PEXPIRE', beside, ttl) == 1
        ttl = held and math.max(redis.call('PTTL', lock), tonumber(ttl))
    end
    if held then redis.call('PEXPIRE', lock, ttl) end
    answer[i] = held and 1 or 0
end
return answer
