-- KEYS: for each hold its lock and, where it is a read hold, its timeout, else the lock again.
-- ARGV: the field of each hold, then the ttl in ms of each. Answer: for each hold 1 if it is renewed, 0 if it is gone.
local answer, holds = {}, #ARGV / 2
for i = 1, holds do
    local lock, timeout, field, ttl = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i], ARGV[holds + i]
    local held = redis.pcall('HEXISTS', lock, field) == 1
    if held and timeout ~= lock then
        held = redis.call('PEXPIRE', timeout, ttl) == 1
        ttl = held and math.max(redis.call('PTTL', lock), tonumber(ttl))
    end
    if held then redis.call('PEXPIRE', lock, ttl) end
    answer[i] = held and 1 or 0
end
return answer
