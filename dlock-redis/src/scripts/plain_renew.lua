-- KEYS: for each hold its key, twice. ARGV: for each hold its value and its ttl in ms.
-- Answer: for each hold 1 if it is renewed, 0 if it is gone.
local answer = {}
for i = 1, #KEYS, 2 do
    local held = redis.pcall('GET', KEYS[i]) == ARGV[i]
    if held then redis.call('PEXPIRE', KEYS[i], ARGV[i + 1]) end
    answer[#answer + 1] = held and 1 or 0
end
return answer
