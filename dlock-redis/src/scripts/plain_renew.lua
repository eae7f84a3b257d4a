-- KEYS: for each hold its key, twice, because renew.lua has two keys a hold. ARGV: the value of each hold, then the ttl in ms of each.
-- Answer: for each hold 1 if it is renewed, 0 if it is gone.
local answer, holds = {}, #ARGV / 2
for i = 1, holds do
    local held = redis.pcall('GET', KEYS[2 * i]) == ARGV[i]
    -- Never shortens: a renewal may arrive late. Always writes: replicas confirm only what is written.
    local ttl = tonumber(ARGV[holds + i])
    if held then redis.call('PEXPIRE', KEYS[2 * i], math.max(redis.call('PTTL', KEYS[2 * i]), ttl)) end
    answer[i] = held and 1 or 0
end
return answer
