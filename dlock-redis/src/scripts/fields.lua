-- fields_of(key, type, wanted): the fields and values of a key that looks like a lock; nil for another program's data, which may
-- be large. `type` is the key's type, `wanted` the type that locks have: `hash`, in the plain dialect `string`.
local function fields_of(key, type, wanted)
    if type ~= wanted then return nil end
    if type == 'string' then return {redis.call('GETRANGE', key, 0, 255), '1'} end
    -- A lock's hash has one field, which is its owner, or a `mode`, beside the owners unless it is `permit`.
    if redis.call('HLEN', key) > 1 and redis.call('HEXISTS', key, 'mode') == 0 then return nil end
    local fields = redis.call('HGETALL', key)
    for i = 1, #fields, 2 do
        local field, value = fields[i], fields[i + 1]
        local hold = string.find(field, ':', 1, true) and string.match(value, '^%d+$')
        if not hold and not (field == 'mode' and (value == 'read' or value == 'write' or value == 'permit')) then return nil end
    end
    return fields
end
