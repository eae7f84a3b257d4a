-- Deletes a label of a client that closes, unless another client has used it too.
-- KEYS: label.
-- ARGV: id of the client.
-- Reply: number of deleted labels.
if redis.call('LINDEX', KEYS[1], 1) ~= ARGV[1] then
    return 0
end
return redis.call('DEL', KEYS[1])
