-- KEYS: keys that may be locks. Answer: the positions of those that look like one: hashes with one field, or with a `mode`.
local found = {}
for place, key in ipairs(KEYS) do
    local fields = redis.pcall('HLEN', key)
    if fields == 1 or type(fields) == 'number' and redis.call('HEXISTS', key, 'mode') == 1 then
        found[#found + 1] = place
    end
end
return found
