-- KEYS: for each hold its lock and, where it is a read hold, its timeout, else the lock again.
-- ARGV: for each hold its field and its ttl in ms. Answer: for each hold 1 if it is renewed, 0 if it is gone.
local answer = {}
for i = 1, #KEYS, 2 do
    local lock, timeout, field, ttl = KEYS[i], KEYS[i + 1], ARGV[i], ARGV[i + 1]
    local held = redis.pcall('HEXISTS', lock, field) == 1
    if held and timeout ~= lock then
        held = redis.call('PEXPIRE', timeout, ttl) == 1
        ttl = held and math.max(redis.call('PTTL', lock), tonumber(ttl))
    end
    if held then redis.call('PEXPIRE', lock, ttl) end
    answer[#answer + 1] = held and 1 or 0
end
return answer
