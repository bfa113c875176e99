// Peers of js-libp2p, as its users build them, told by JSON lines what to do: {"id", "do", …} in, {"id", "result" | "error"} out.
import { webcrypto } from 'node:crypto'
import { createInterface } from 'node:readline'

// libp2p 3 asks for Node.js 22; this is all that it uses of it beyond 18.
globalThis.crypto ??= webcrypto
Promise.withResolvers ??= function () {
  const made = {}
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}
globalThis.CustomEvent ??= class extends Event {
  constructor (type, options) {
    super(type, options)
    this.detail = options?.detail ?? null
  }
}

const [{ createLibp2p }, { tcp }, { noise }, { yamux }, { identify, identifyPush }, { ping }, dht, { autoNAT }, { multiaddr }, { CID }, { peerIdFromString }] =
  await Promise.all(['libp2p', '@libp2p/tcp', '@chainsafe/libp2p-noise', '@chainsafe/libp2p-yamux', '@libp2p/identify',
    '@libp2p/ping', '@libp2p/kad-dht', '@libp2p/autonat', '@multiformats/multiaddr', 'multiformats/cid', '@libp2p/peer-id'].map(name => import(name)))

const KAD = '/murmuration/kad/1.0.0'
const peers = []
const told = [] // of each peer, what others have said of themselves

const bytes = hex => Uint8Array.from(Buffer.from(hex, 'hex'))
const shown = peer => ({ id: peer.id.toString(), addresses: peer.multiaddrs.map(String) })

async function all (found) {
  const list = []
  for await (const each of found) list.push(each)
  return list
}

const commands = {
  async start ({ mode, listen = ['/ip4/127.0.0.1/tcp/0'] }) {
    const peer = await createLibp2p({
      addresses: { listen },
      transports: [tcp()],
      connectionEncrypters: [noise()],
      streamMuxers: [yamux()],
      services: {
        identify: identify(),
        identifyPush: identifyPush(),
        ping: ping(),
        autoNAT: autoNAT(),
        // What is not public it would leave out, and a test's addresses are not.
        dht: dht.kadDHT({ protocol: KAD, clientMode: mode === 'client', peerInfoMapper: dht.passthroughMapper })
      }
    })
    const identified = new Map()
    peer.addEventListener('peer:identify', ({ detail }) => identified.set(detail.peerId.toString(), detail))
    told.push(identified)
    return { peer: peers.push(peer) - 1, id: peer.peerId.toString(), addresses: peer.getMultiaddrs().map(String) }
  },
  async dial ({ peer, address }) {
    return (await peers[peer].dial(multiaddr(address))).remotePeer.toString()
  },
  identified ({ peer, who }) {
    const found = told[peer].get(who)
    return found && { protocols: found.protocols, agent: found.agentVersion, addresses: found.listenAddrs.map(String), seen: String(found.observedAddr) }
  },
  ping: async ({ peer, address }) => await peers[peer].services.ping.ping(multiaddr(address)),
  kadPing: async ({ peer, who }) => (await all(peers[peer].services.dht.network.sendRequest(peerIdFromString(who), { type: 'PING', closer: [], providers: [] }, deadline()))).map(event => event.messageType ?? event.error?.message ?? event.name).at(-1),
  table: ({ peer }) => peers[peer].services.dht.routingTable.closestPeers(new Uint8Array(32), { count: 1000 }).map(String),
  find: async ({ peer, who }) => shown(await peers[peer].peerRouting.findPeer(peerIdFromString(who), deadline())),
  provide: async ({ peer, key }) => await peers[peer].contentRouting.provide(cid(key), deadline()),
  providers: async ({ peer, key }) => (await all(peers[peer].contentRouting.findProviders(cid(key), deadline()))).map(shown),
  put: async ({ peer, key, value }) => (await all(peers[peer].services.dht.put(bytes(key), bytes(value), deadline()))).map(event => event.name),
  get: async ({ peer, key }) => (await all(peers[peer].services.dht.get(bytes(key), deadline()))).map(event => event.name),
  mode: async ({ peer, mode }) => await peers[peer].services.dht.setMode(mode),
  stop: async ({ peer }) => await peers[peer].stop()
}

const deadline = () => ({ signal: AbortSignal.timeout(15_000) })
const cid = key => CID.createV0({ code: 0x12, size: 32, digest: bytes(key).subarray(2), bytes: bytes(key) })

for await (const line of createInterface({ input: process.stdin })) {
  const { id, do: command, ...given } = JSON.parse(line)
  Promise.resolve().then(() => commands[command](given)).then(
    result => console.log(JSON.stringify({ id, result: result ?? null })),
    error => console.log(JSON.stringify({ id, error: `${error.name}: ${error.message}` }))
  )
}
process.exit()
