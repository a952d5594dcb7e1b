"""The Lua that the Redis adapter runs: each script is one atomic step, and repeating it is harmless.

Keys, all under a namespace (one primary; not meant for Redis Cluster, as scripts reach keys they compute):

    chunks:<digest>      hash, chunk index -> bytes          segment:<digest>   record of a sealed segment, JSON
    refs:<digest>        set of releases that hold it        release:<id>       canonical bytes
    members:<id>         set of the release's segments       inventory          zset "s:<digest>" | "r:<id>" -> touched, ms
    history:<index>      list "<version> <release>"          indexes            set of index names
    events               stream of alias changes             leases, lease:<p>  sets of publications and of names they hold
    live:<scope>         stream, ids <sequence>-0            live-ids:<scope>   hash entry id -> "<sequence> <chain>"
    live-newest:<scope>  newest sequence number              live-head:<scope>  "<sequence> <chain>" of the newest entry
"""

NOW = "local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"

# KEYS chunks, inventory; ARGV index, bytes, member
PUT_CHUNK = (
    NOW
    + """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], now, ARGV[3])
return 1
"""
)

# KEYS chunks, segment, inventory; ARGV number of chunks, record, member -> chunks found
SEAL = (
    NOW
    + """
local found, wanted = 0, tonumber(ARGV[1])
for _, index in ipairs(redis.call('HKEYS', KEYS[1])) do
  if tonumber(index) < wanted then found = found + 1 else redis.call('HDEL', KEYS[1], index) end
end
if found == wanted then
  redis.call('SET', KEYS[2], ARGV[2])
  redis.call('ZADD', KEYS[3], now, ARGV[3])
end
return found
"""
)

# KEYS namespace, inventory; ARGV release id, bytes, digests... -> '' or a digest that is not sealed
PUT_RELEASE = (
    NOW
    + """
local id = ARGV[1]
for i = 3, #ARGV do
  if redis.call('EXISTS', KEYS[1] .. ':segment:' .. ARGV[i]) == 0 then return ARGV[i] end
end
for i = 3, #ARGV do
  redis.call('SADD', KEYS[1] .. ':refs:' .. ARGV[i], id)
  redis.call('SADD', KEYS[1] .. ':members:' .. id, ARGV[i])
end
redis.call('SET', KEYS[1] .. ':release:' .. id, ARGV[2])
redis.call('ZADD', KEYS[2], now, 'r:' .. id)
return ''
"""
)

# KEYS release, history, indexes, events; ARGV index, release id, expected version, history limit
# -> -1 done, -2 no such release, else the version found
SET_ALIAS = """
if redis.call('EXISTS', KEYS[1]) == 0 then return -2 end
local head = redis.call('LINDEX', KEYS[2], 0)
local version = 0
if head then version = tonumber(string.match(head, '^(%d+) ')) end
local expected = tonumber(ARGV[3])
local entry = string.format('%d %s', expected + 1, ARGV[2])
if head == entry then return -1 end
if version ~= expected then return version end
redis.call('LPUSH', KEYS[2], entry)
redis.call('LTRIM', KEYS[2], 0, tonumber(ARGV[4]) - 1)
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', 10000, '*', 'index', ARGV[1], 'entry', entry)
return -1
"""

# KEYS namespace; ARGV grace in ms, aliases of history kept -> names deleted
COLLECT = (
    NOW
    + """
local ns, held, gone = KEYS[1], {}, {}
for _, p in ipairs(redis.call('SMEMBERS', ns .. ':leases')) do
  local names = redis.call('SMEMBERS', ns .. ':lease:' .. p)
  if #names == 0 then redis.call('SREM', ns .. ':leases', p) end
  for _, name in ipairs(names) do held[name] = true end
end
for _, index in ipairs(redis.call('SMEMBERS', ns .. ':indexes')) do
  for _, entry in ipairs(redis.call('LRANGE', ns .. ':history:' .. index, 0, tonumber(ARGV[2]) - 1)) do
    held[string.match(entry, ' (.*)$')] = true
  end
end
local old = redis.call('ZRANGEBYSCORE', ns .. ':inventory', '-inf', now - tonumber(ARGV[1]))
for _, member in ipairs(old) do
  local name = string.sub(member, 3)
  if string.sub(member, 1, 1) == 'r' and not held[name] then
    for _, digest in ipairs(redis.call('SMEMBERS', ns .. ':members:' .. name)) do
      redis.call('SREM', ns .. ':refs:' .. digest, name)
    end
    redis.call('UNLINK', ns .. ':release:' .. name, ns .. ':members:' .. name)
    redis.call('ZREM', ns .. ':inventory', member)
    gone[#gone + 1] = name
  end
end
for _, member in ipairs(old) do
  local name = string.sub(member, 3)
  if string.sub(member, 1, 1) == 's' and not held[name] and redis.call('SCARD', ns .. ':refs:' .. name) == 0 then
    redis.call('UNLINK', ns .. ':chunks:' .. name, ns .. ':segment:' .. name)
    redis.call('ZREM', ns .. ':inventory', member)
    gone[#gone + 1] = name
  end
end
return gone
"""
)

# KEYS stream, ids, newest, head; ARGV entry id, payload, most entries -> "<sequence> <chain>"
APPEND_LIVE = (
    NOW
    + """
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known then return known end
local newest, before = redis.call('GET', KEYS[3]), ''
local function add(sequence, id, payload)
  local chain = redis.sha1hex(before .. ' ' .. #id .. ' ' .. id .. payload)
  local point = string.format('%d %s', sequence, chain)
  redis.call('XADD', KEYS[1], string.format('%d-0', sequence), 'id', id, 'payload', payload, 'before', before)
  redis.call('HSET', KEYS[2], id, point)
  redis.call('SET', KEYS[3], string.format('%d', sequence))
  redis.call('SET', KEYS[4], point)
  before = chain
  return point
end
if not newest then
  newest = now + 1
  add(newest, string.format('floor-%d', now), 'F' .. struct.pack('<I8', now))
else
  local sequence, chain = string.match(redis.call('GET', KEYS[4]) or '', '^(%d+) (%x*)$')
  if sequence == newest then before = chain end
end
local point = add(newest + 1, ARGV[1], ARGV[2])
local excess = redis.call('XLEN', KEYS[1]) - tonumber(ARGV[3])
if excess > 0 then
  for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', excess)) do
    redis.call('HDEL', KEYS[2], entry[2][2])
    redis.call('XDEL', KEYS[1], entry[1])
  end
end
return point
"""
)

# KEYS stream, ids; ARGV last generation to drop
TRIM_LIVE = """
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', ARGV[1] .. '-0')) do
  redis.call('HDEL', KEYS[2], entry[2][2])
  redis.call('XDEL', KEYS[1], entry[1])
end
return 1
"""
