-- KEYS: what may be locks. Answer: the places of those that look so at first sight: a hash with one field, or with a mode.
local found = {}
for place, key in ipairs(KEYS) do
    local fields = redis.pcall('HLEN', key)
    if fields == 1 or type(fields) == 'number' and redis.call('HEXISTS', key, 'mode') == 1 then
        found[#found + 1] = place
    end
end
return found
