import { assert, layer as withLayer } from "@effect/vitest"
import { FileNotFoundError, type FilesystemEvent, FilesystemEventType, InvalidArgumentError, SandboxError } from "e2b"
import * as Effect from "effect/Effect"
import { createHash, randomBytes } from "node:crypto"
import { failure, layer, sandbox, within } from "./fixture.ts"

const timeout = 30_000

const digest = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex")

withLayer(layer, { excludeTestServices: true, timeout })("E2bServer: files", (it) => {
  it.effect("are written and read in every form, at once and in parts", () =>
    within(async (made) => {
      const large = new Uint8Array(randomBytes(3_000_000))
      await made.files.write("large", new Blob([large]))
      assert.strictEqual(digest(await made.files.read("large", { format: "bytes" })), digest(large))
      await made.files.write("zipped", new Blob([large]), { gzip: true })
      assert.strictEqual(digest(await made.files.read("zipped", { format: "bytes", gzip: true })), digest(large))
      await made.files.write("octets", new Blob([large]).stream(), { useOctetStream: true })
      const parts: Array<Uint8Array> = []
      for await (const part of await made.files.read("octets", { format: "stream" })) {
        parts.push(part)
      }
      assert.strictEqual(digest(Buffer.concat(parts)), digest(large))
      await made.files.write("empty", "")
      assert.strictEqual(await made.files.read("empty"), "")
      const many = Array.from({ length: 40 }, (_, n) => ({ path: `many/ü ${n}/file`, data: `content ${n}` }))
      const written = await made.files.write(many)
      assert.deepStrictEqual(written.map(({ path }) => path), many.map(({ path }) => `/home/user/${path}`))
      assert.strictEqual(await made.files.read("many/ü 39/file"), "content 39")
      assert.strictEqual((await made.commands.run("stat -c '%U %a' large 'many/ü 1'")).stdout, "user 644\nuser 755\n")
    }), timeout)

  it.effect("are described, listed, made, moved and removed", () =>
    within(async (made) => {
      assert.isTrue(await made.files.makeDir("dir/sub"))
      assert.isFalse(await made.files.makeDir("dir/sub"))
      await made.files.write("dir/a", "1", { metadata: { author: "me" } })
      await made.files.write("/at/the/root", "2")
      await made.commands.run("ln -s a dir/link; ln -s /nowhere dir/dangling; mkfifo dir/pipe; echo 3 >dir/sub/b")
      // The SDK leaves out what has no kind: the pipe, and a link to nothing.
      const listed = await made.files.list("dir", { depth: 2 })
      assert.deepStrictEqual(
        listed.map(({ name, symlinkTarget, type }) => [name, type, symlinkTarget]),
        [
          ["a", "file", undefined],
          ["link", "file", "/home/user/dir/a"],
          ["sub", "dir", undefined],
          ["b", "file", undefined]
        ]
      )
      const info = await made.files.getInfo("~/dir/a")
      assert.deepStrictEqual(
        [info.path, info.size, info.mode, info.permissions, info.owner, info.group, info.metadata],
        ["/home/user/dir/a", 1, 0o644, "-rw-r--r--", "user", "user", { author: "me" }]
      )
      assert.isAbove(info.modifiedTime?.getTime() ?? 0, Date.now() - 60_000)
      const moved = await made.files.rename("dir/a", "/tmp/new/place")
      assert.deepStrictEqual([moved.path, moved.metadata], ["/tmp/new/place", { author: "me" }])
      assert.isFalse(await made.files.exists("dir/a"))
      await made.files.remove("dir")
      await made.files.remove("dir")
      assert.isFalse(await made.files.exists("dir"))
    }), timeout)

  it.scoped("are refused as the SDK's errors", () =>
    Effect.gen(function*() {
      const made = yield* sandbox()
      const { files } = made
      assert.instanceOf(yield* failure(() => files.read("none")), FileNotFoundError)
      assert.instanceOf(yield* failure(() => files.getInfo("none")), FileNotFoundError)
      assert.instanceOf(yield* failure(() => files.list("none")), FileNotFoundError)
      assert.instanceOf(yield* failure(() => files.rename("none", "other")), FileNotFoundError)
      assert.instanceOf(yield* failure(() => files.read("/tmp")), InvalidArgumentError)
      assert.instanceOf(yield* failure(() => files.read("/dev/zero")), InvalidArgumentError)
      assert.instanceOf(yield* failure(() => files.list("/etc/passwd")), InvalidArgumentError)
      assert.instanceOf(yield* failure(() => files.watchDir("none", () => {})), FileNotFoundError)
      const full = yield* failure(() => files.write("big", new Blob([new Uint8Array(130 * 1024 * 1024)])))
      assert.strictEqual(full.name, "NotEnoughSpaceError")
    }), timeout)

  // Root makes what the user may not read; an ordinary user's sandbox has no superuser.
  it.scoped.skipIf(process.getuid?.() !== 0)(
    "obey the permissions of the sandbox's user, wherever links lead",
    () =>
      Effect.gen(function*() {
        const made = yield* sandbox()
        yield* Effect.promise(async () => {
          await made.files.write("/root/secret", "x", { user: "root" })
          await made.commands.run("chmod 600 /root/secret; chmod 755 /root; ln -s /root/secret /home/user/link", {
            user: "root"
          })
          await made.commands.run("ln -s /proc/self/environ environ; ln -s /etc etc")
        })
        for (const path of ["/root/secret", "link", "/etc/new", "etc/new", "/usr/new"]) {
          const error = yield* failure(() => path.endsWith("new") ? made.files.write(path, "") : made.files.read(path))
          assert.instanceOf(error, SandboxError)
          assert.match(error.message, /^403/, path)
        }
        assert.match((yield* failure(() => made.files.remove("/root/secret"))).message, /permission_denied/)
        assert.strictEqual(yield* Effect.promise(() => made.files.read("/home/user/link", { user: "root" })), "x")
      }),
    timeout
  )

  it.effect("are served on, whatever a guest kills or starts", () =>
    within(async (made) => {
      await made.files.write("kept", "1")
      await made.commands.run("kill -9 -1").catch(() => {})
      assert.strictEqual(await made.files.read("kept"), "1")
      // As many processes as there may be.
      await made.commands.run(
        "python3 -c 'import os, time\nfor n in range(200):\n  if os.fork() == 0: time.sleep(600)' 2>/dev/null"
      ).catch(() => {})
      assert.strictEqual(await made.files.read("kept"), "1")
      await made.files.write("kept", "2")
      assert.strictEqual(await made.files.read("kept"), "2")
    }), timeout)

  it.effect("are watched, also below, and also by asking", () =>
    within(async (made) => {
      await made.files.makeDir("seen/below")
      const events: Array<FilesystemEvent> = []
      const until = async (found: (event: FilesystemEvent) => boolean) => {
        while (!events.some(found)) {
          await new Promise((resolve) => setTimeout(resolve, 10))
        }
      }
      const handle = await made.files.watchDir("seen", (event) => {
        events.push(event)
      }, { recursive: true, includeEntry: true })
      await made.files.write("seen/a", "1")
      await until(({ name, type }) => name === "a" && type === FilesystemEventType.WRITE)
      assert.deepStrictEqual(events.filter(({ name }) => name === "a").map(({ type }) => type), [
        FilesystemEventType.CREATE,
        FilesystemEventType.CHMOD,
        FilesystemEventType.WRITE
      ])
      await made.commands.run("mkdir -p seen/x/y; echo 1 >seen/x/y/z; chmod 600 seen/a; mv seen/a seen/b; rm seen/b")
      await until(({ name }) => name === "x/y/z")
      await until(({ name, type }) => name === "a" && type === FilesystemEventType.CHMOD)
      await until(({ name, type }) => name === "a" && type === FilesystemEventType.RENAME)
      await until(({ name, type }) => name === "b" && type === FilesystemEventType.CREATE)
      await until(({ name, type }) => name === "b" && type === FilesystemEventType.REMOVE)
      const made1 = events.find(({ name, type }) => name === "x" && type === FilesystemEventType.CREATE)
      assert.strictEqual(made1?.entry?.path, "/home/user/seen/x")
      await handle.stop()
    }), timeout)
})
