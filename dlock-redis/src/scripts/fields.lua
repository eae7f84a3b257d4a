-- fields_of(key, type, wanted) returns the fields and values of a key that looks like a lock.
-- Returns nil for data of another program, which may be large. `type` is the type of the key.
-- `wanted` is the type of locks, `hash`, or `string` in the plain dialect.
local function fields_of(key, type, wanted)
    if type ~= wanted then return nil end
    if type == 'string' then return {redis.call('GETRANGE', key, 0, 255), '1'} end
    -- A lock's hash has a single field, its owner, or it has a `mode`. Owners are beside the
    -- `mode`, except perhaps for `permit`.
    if redis.call('HLEN', key) > 1 and redis.call('HEXISTS', key, 'mode') == 0 then return nil end
    local fields = redis.call('HGETALL', key)
    for i = 1, #fields, 2 do
        local field, value = fields[i], fields[i + 1]
        local hold = string.find(field, ':', 1, true) and string.match(value, '^%d+$')
        if not hold and not (field == 'mode' and (value == 'read' or value == 'write' or value == 'permit')) then return nil end
    end
    return fields
end
