-- Finds the keys that look like locks: hashes with a single field or with a `mode`.
-- KEYS: keys that may be locks.
-- Reply: the positions of the keys that look like locks.
local found = {}
for place, key in ipairs(KEYS) do
    local fields = redis.pcall('HLEN', key)
    if fields == 1 or type(fields) == 'number' and redis.call('HEXISTS', key, 'mode') == 1 then
        found[#found + 1] = place
    end
end
return found
