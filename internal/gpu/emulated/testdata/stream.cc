// Streams, events, captures and graphs.
#include "emulate.h"
#include "fiber.h"
#include <pthread.h>
#include <signal.h>

// node is something that a graph does once what it comes after is done. Nodes of one branch are those of one stream.
struct node {
	std::function<void()> f;
	stream *branch;
	std::set<size_t> after;
};

// capture is what one or more streams record instead of doing it, in the order of the calls.
struct capture {
	uint64_t id;
	stream *origin;
	bool broken = false, over = false;
	std::vector<node> nodes;
	std::set<stream *> members;
	std::map<stream *, std::set<size_t>> tails; // what the next node of a stream comes after
};

// An event's state outlives it, for those who wait.
struct event_state {
	uint64_t recorded = 0, completed = 0; // numbers of records
	uint64_t at = 0;                      // when the last was done
};
struct event {
	device *d;
	bool timing;
	std::shared_ptr<event_state> state;
	std::shared_ptr<capture> captured; // where it was recorded last, if in a capture
	std::set<size_t> tail;             // and after what
};

// A graph runs once at a time.
struct graph {
	device *d;
	uint64_t capture;
	std::vector<node> nodes;
	std::shared_ptr<std::mutex> running = std::make_shared<std::mutex>();
};

// The places of nodes that were asked for.
struct place {
	uint64_t capture;
	size_t index;
};

static std::map<uintptr_t, std::shared_ptr<stream>> &streams = *new std::map<uintptr_t, std::shared_ptr<stream>>;
static std::set<std::shared_ptr<stream>> &working = *new std::set<std::shared_ptr<stream>>; // those with a thread
static std::map<uintptr_t, event> &events = *new std::map<uintptr_t, event>;
static std::map<uintptr_t, std::shared_ptr<graph>> &graphs = *new std::map<uintptr_t, std::shared_ptr<graph>>;
static std::map<uintptr_t, place> &places = *new std::map<uintptr_t, place>;
static std::map<uintptr_t, std::shared_ptr<graph>> &execs = *new std::map<uintptr_t, std::shared_ptr<graph>>;

static void *work(void *arg) {
	std::shared_ptr<stream> s = *(std::shared_ptr<stream> *)arg;
	delete (std::shared_ptr<stream> *)arg;
	emu_guard();
	std::unique_lock<std::mutex> locked(lock);
	for (;;) {
		while (s->queue.empty() && !s->closing)
			s->wake.wait(locked);
		if (s->queue.empty())
			break;
		std::function<void()> f = std::move(s->queue.front());
		s->queue.pop_front();
		locked.unlock();
		f();
		f = nullptr;
		locked.lock();
		s->done++;
		progressed.notify_all();
	}
	emu_unguard();
	s->ended = true;
	working.erase(s);
	progressed.notify_all();
	return 0;
}

// The process's signals are not for these threads, which know nothing of Go.
static int thread(pthread_t *t, bool detached, void *(*f)(void *), void *arg) {
	sigset_t all, before;
	sigfillset(&all);
	for (int sig : {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGABRT})
		sigdelset(&all, sig);
	pthread_attr_t a;
	pthread_attr_init(&a);
	if (detached)
		pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&a, 512 << 10);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int code = pthread_create(t, &a, f, arg);
	pthread_sigmask(SIG_SETMASK, &before, 0);
	pthread_attr_destroy(&a);
	return code;
}

static int start(const std::shared_ptr<stream> &s) {
	pthread_t t;
	auto *arg = new std::shared_ptr<stream>(s);
	if (thread(&t, true, work, arg)) {
		delete arg;
		return OUT_OF_MEMORY;
	}
	s->started = true;
	working.insert(s);
	return 0;
}

int enqueue(const std::shared_ptr<stream> &s, std::function<void()> f) {
	if (s->capturing) {
		if (s->capturing->broken)
			return CAPTURE_INVALIDATED;
		auto &c = *s->capturing;
		auto &tail = c.tails[s.get()];
		c.nodes.push_back({std::move(f), s.get(), tail});
		tail = {c.nodes.size() - 1};
		return 0;
	}
	if (!s->started)
		if (int code = start(s))
			return code;
	s->queue.push_back(std::move(f));
	s->queued++;
	s->wake.notify_one();
	return 0;
}

static std::shared_ptr<stream> new_stream(device *d) {
	auto s = std::make_shared<stream>();
	s->handle = new_handle();
	s->d = d;
	return s;
}

// Streams of the caller never wait for the default stream here, nor it for them.
int stream_of(device *d, uintptr_t handle, std::shared_ptr<stream> *s) {
	if (handle <= 2) { // the default stream, and its two names
		if (!d->legacy)
			d->legacy = new_stream(d);
		*s = d->legacy;
		return 0;
	}
	auto i = streams.find(handle);
	if (i == streams.end() || i->second->d != d)
		return INVALID_HANDLE;
	*s = i->second;
	return 0;
}

void drain(std::unique_lock<std::mutex> &locked, device *d) {
	std::vector<std::pair<std::shared_ptr<stream>, uint64_t>> all;
	for (auto &s : working)
		if (s->d == d)
			all.push_back({s, s->queued});
	for (auto &s : all)
		while (s.first->done < s.second)
			progressed.wait(locked);
}

// Captures in global mode, and what this thread thinks of them. As the driver has it, what is unsafe fails on a thread that
// is not relaxed, and ends them.
static std::set<capture *> global;
static thread_local int capture_mode;
enum { GLOBAL = 0, RELAXED = 2 };

int unsafe(void) {
	if (global.empty() || capture_mode == RELAXED)
		return 0;
	for (capture *c : global)
		c->broken = true;
	return CAPTURE_UNSUPPORTED;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
	START("cuThreadExchangeStreamCaptureMode");
	if (*mode < GLOBAL || *mode > RELAXED)
		return INVALID_VALUE;
	std::swap(*mode, capture_mode);
	return 0;
}

// over ends a capture for all its streams.
static void over(const std::shared_ptr<capture> &c) {
	global.erase(c.get());
	for (stream *member : c->members)
		member->capturing = nullptr;
	c->members.clear();
	c->over = true;
}

// leave is for a stream that goes in the middle of a capture.
static void leave(stream *s) {
	auto c = s->capturing;
	if (!c)
		return;
	c->broken = true;
	if (c->origin == s)
		return over(c);
	c->members.erase(s);
	s->capturing = nullptr;
}

static void close(const std::shared_ptr<stream> &s) {
	leave(s.get());
	s->closing = true;
	s->wake.notify_one();
}

template <class M, class Of> static void forget(M &all, device *d, Of of) {
	for (auto i = all.begin(); i != all.end();)
		if (of(i->second) == d)
			i = all.erase(i);
		else
			++i;
}

void close_streams(device *d) {
	for (auto &s : streams)
		if (s.second->d == d)
			close(s.second);
	if (d->legacy)
		close(d->legacy);
	d->legacy = nullptr;
	forget(streams, d, [](auto &s) { return s->d; });
	forget(events, d, [](auto &e) { return e.d; });
	forget(graphs, d, [](auto &g) { return g->d; });
	forget(execs, d, [](auto &g) { return g->d; });
}

int cuStreamCreate(uintptr_t *handle, unsigned flags) {
	BEGIN("cuStreamCreate");
	if (flags & ~(unsigned)UBC_STREAM_NON_BLOCKING)
		return INVALID_VALUE;
	auto s = new_stream(d);
	streams[*handle = s->handle] = s;
	return 0;
}

int cuStreamGetCtx(uintptr_t handle, uintptr_t *ctx) {
	BEGIN("cuStreamGetCtx");
	auto i = streams.find(handle);
	if (handle > 2 && i == streams.end())
		return INVALID_HANDLE;
	*ctx = (uintptr_t)(handle > 2 ? i->second->d : d);
	return 0;
}

// What is queued is still done; the thread goes with it, or before the call returns.
int cuStreamDestroy_v2(uintptr_t handle) {
	BEGIN("cuStreamDestroy_v2");
	if (handle <= 2)
		return INVALID_HANDLE;
	STREAM(s, handle);
	streams.erase(handle);
	close(s);
	if (s->started && s->done == s->queued)
		while (!s->ended)
			progressed.wait(locked);
	return 0;
}

static int forbidden(stream &s) {
	if (!s.capturing)
		return 0;
	s.capturing->broken = true;
	return CAPTURE_UNSUPPORTED;
}

int cuStreamQuery(uintptr_t handle) {
	BEGIN("cuStreamQuery");
	STREAM(s, handle);
	if (int code = forbidden(*s))
		return code;
	return s->done == s->queued ? 0 : NOT_READY;
}

int cuStreamSynchronize(uintptr_t handle) {
	BEGIN("cuStreamSynchronize");
	STREAM(s, handle);
	if (int code = forbidden(*s))
		return code;
	for (uint64_t upto = s->queued; s->done < upto;)
		progressed.wait(locked);
	return d->error;
}

int cuEventCreate(uintptr_t *handle, unsigned flags) {
	BEGIN("cuEventCreate");
	bool timing = !(flags & UBC_EVENT_DISABLE_TIMING);
	events[*handle = new_handle()] = event{d, timing, std::make_shared<event_state>(), nullptr};
	return 0;
}

#define EVENT(e, handle) \
	auto e##_at = events.find(handle); \
	if (e##_at == events.end()) \
		return INVALID_HANDLE; \
	event &e = e##_at->second

int cuEventDestroy_v2(uintptr_t handle) {
	BEGIN("cuEventDestroy_v2");
	return events.erase(handle) ? 0 : INVALID_HANDLE;
}

int cuEventRecord(uintptr_t handle, uintptr_t on) {
	BEGIN("cuEventRecord");
	STREAM(s, on);
	EVENT(e, handle);
	if (e.d != d)
		return INVALID_HANDLE;
	e.captured = s->capturing;
	if (s->capturing)
		e.tail = s->capturing->tails[s.get()];
	if (s->capturing)
		return s->capturing->broken ? CAPTURE_INVALIDATED : 0;
	auto state = e.state;
	uint64_t n = ++state->recorded;
	return enqueue(s, [state, n] {
		std::lock_guard<std::mutex> locked(lock);
		if (n > state->completed)
			state->completed = n;
		state->at = emu_now();
	});
}

int cuEventQuery(uintptr_t handle) {
	BEGIN("cuEventQuery");
	EVENT(e, handle);
	if (e.captured)
		return CAPTURED_EVENT;
	return e.state->completed == e.state->recorded ? 0 : NOT_READY;
}

int cuEventSynchronize(uintptr_t handle) {
	BEGIN("cuEventSynchronize");
	EVENT(e, handle);
	if (e.captured)
		return CAPTURED_EVENT;
	auto state = e.state; // e may be gone before it is done
	for (uint64_t upto = state->recorded; state->completed < upto;)
		progressed.wait(locked);
	return d->error;
}

int cuEventElapsedTime(float *ms, uintptr_t from, uintptr_t to) {
	BEGIN("cuEventElapsedTime");
	EVENT(a, from);
	EVENT(b, to);
	for (event *e : {&a, &b}) {
		if (e->captured)
			return CAPTURED_EVENT;
		if (!e->timing || !e->state->recorded)
			return INVALID_HANDLE;
		if (e->state->completed < e->state->recorded)
			return NOT_READY;
	}
	*ms = (float)((double)(int64_t)(b.state->at - a.state->at) / 1e6);
	return 0;
}

int cuStreamWaitEvent(uintptr_t handle, uintptr_t what, unsigned flags) {
	BEGIN("cuStreamWaitEvent");
	STREAM(s, handle);
	EVENT(e, what);
	if (flags)
		return INVALID_VALUE;
	if (e.captured) {
		if (e.captured->over)
			return CAPTURED_EVENT;
		if (s->capturing && s->capturing != e.captured) {
			s->capturing->broken = e.captured->broken = true;
			return CAPTURE_MERGE;
		}
		s->capturing = e.captured; // it joins
		e.captured->members.insert(s.get());
		e.captured->tails[s.get()].insert(e.tail.begin(), e.tail.end());
		return 0;
	}
	if (s->capturing) {
		s->capturing->broken = true;
		return CAPTURE_ISOLATION;
	}
	auto state = e.state;
	uint64_t n = state->recorded;
	if (!n)
		return 0;
	return enqueue(s, [state, n] {
		std::unique_lock<std::mutex> locked(lock);
		while (state->completed < n)
			progressed.wait(locked);
	});
}

int cuStreamBeginCapture_v2(uintptr_t handle, int mode) {
	BEGIN("cuStreamBeginCapture_v2");
	STREAM(s, handle);
	if (mode < GLOBAL || mode > RELAXED)
		return INVALID_VALUE;
	if (handle <= 2)
		return CAPTURE_UNSUPPORTED;
	if (s->capturing)
		return ILLEGAL_STATE;
	s->capturing = std::make_shared<capture>();
	s->capturing->id = new_handle();
	s->capturing->origin = s.get();
	s->capturing->members.insert(s.get());
	if (mode == GLOBAL)
		global.insert(s->capturing.get());
	return 0;
}

int cuStreamEndCapture(uintptr_t handle, uintptr_t *out) {
	BEGIN("cuStreamEndCapture");
	STREAM(s, handle);
	*out = 0;
	auto c = s->capturing;
	if (!c)
		return ILLEGAL_STATE;
	if (c->origin != s.get()) {
		c->broken = true;
		return CAPTURE_UNMATCHED;
	}
	over(c);
	if (c->broken)
		return CAPTURE_INVALIDATED;
	std::set<size_t> joined, left = c->tails[s.get()];
	while (!left.empty()) {
		size_t i = *left.begin();
		left.erase(left.begin());
		if (joined.insert(i).second)
			left.insert(c->nodes[i].after.begin(), c->nodes[i].after.end());
	}
	if (joined.size() != c->nodes.size())
		return CAPTURE_UNJOINED;
	auto g = std::make_shared<graph>();
	g->d = d;
	g->capture = c->id;
	g->nodes = c->nodes;
	graphs[*out = new_handle()] = g;
	return 0;
}

int cuStreamGetCaptureInfo_v2(uintptr_t handle, int *status, uint64_t *id, uintptr_t *graph, const uintptr_t **after,
	size_t *count) {
	BEGIN("cuStreamGetCaptureInfo_v2");
	STREAM(s, handle);
	if (!!graph != !!after || !!after != !!count)
		return NOT_SUPPORTED;
	if (after) {
		static std::vector<uintptr_t> last; // until the stream's next call
		last.clear();
		if (s->capturing && !s->capturing->broken)
			for (size_t i : s->capturing->tails[s.get()]) {
				last.push_back(new_handle());
				places[last.back()] = {s->capturing->id, i};
			}
		*after = last.data();
		*count = last.size();
	}
	*status = !s->capturing ? 0 : s->capturing->broken ? UBC_CAPTURE_INVALIDATED : UBC_CAPTURE_ACTIVE;
	if (id && s->capturing)
		*id = s->capturing->id;
	return 0;
}

int cuGraphInstantiateWithFlags(uintptr_t *exec, uintptr_t handle, uint64_t flags) {
	BEGIN("cuGraphInstantiateWithFlags");
	auto g = graphs.find(handle);
	if (g == graphs.end() || flags)
		return INVALID_VALUE;
	execs[*exec = new_handle()] = g->second;
	return 0;
}

int cuGraphDestroy(uintptr_t handle) {
	BEGIN("cuGraphDestroy");
	return graphs.erase(handle) ? 0 : INVALID_VALUE;
}

// running is a graph while it runs.
struct running {
	graph *g;
	std::mutex m;
	std::condition_variable changed;
	std::vector<bool> done;
};

struct running_branch {
	running *r;
	stream *branch;
};

static void run_branch(running *r, stream *branch) {
	for (size_t i = 0; i < r->g->nodes.size(); i++) {
		node &n = r->g->nodes[i];
		if (n.branch != branch)
			continue;
		std::unique_lock<std::mutex> locked(r->m);
		for (size_t before : n.after)
			while (!r->done[before])
				r->changed.wait(locked);
		locked.unlock();
		n.f();
		locked.lock();
		r->done[i] = true;
		r->changed.notify_all();
	}
}

static void *branch_thread(void *arg) {
	auto *b = (running_branch *)arg;
	emu_guard();
	run_branch(b->r, b->branch);
	emu_unguard();
	return 0;
}

// Branches run at the same time, as kernels that wait for each other need.
static void run_graph(graph *g) {
	std::lock_guard<std::mutex> once(*g->running);
	running r = {g, {}, {}, std::vector<bool>(g->nodes.size())};
	std::set<stream *> all;
	for (auto &n : g->nodes)
		all.insert(n.branch);
	std::vector<running_branch> branches;
	for (stream *s : all)
		branches.push_back({&r, s});
	std::vector<pthread_t> threads(branches.size());
	for (size_t i = 1; i < branches.size(); i++)
		if (thread(&threads[i], false, branch_thread, &branches[i])) {
			fprintf(stderr, "emulated GPU: no thread for a branch of a graph\n");
			abort();
		}
	if (!branches.empty())
		run_branch(&r, branches[0].branch);
	for (size_t i = 1; i < branches.size(); i++)
		pthread_join(threads[i], 0);
}

int cuGraphLaunch(uintptr_t handle, uintptr_t on) {
	BEGIN("cuGraphLaunch");
	STREAM(s, on);
	auto e = execs.find(handle);
	if (e == execs.end())
		return INVALID_VALUE;
	auto g = e->second;
	return enqueue(s, [g] { run_graph(g.get()); });
}

// Launches that are queued keep what they have.
int set_node(uintptr_t handle, uintptr_t node, std::function<void()> f) {
	auto e = execs.find(handle);
	auto p = places.find(node);
	if (e == execs.end() || p == places.end() || p->second.capture != e->second->capture)
		return INVALID_VALUE;
	bool alive = false; // what it was made of, whose nodes go with it
	for (auto &g : graphs)
		alive = alive || g.second->capture == p->second.capture;
	if (!alive)
		return INVALID_VALUE;
	auto changed = std::make_shared<graph>(*e->second);
	changed->nodes[p->second.index].f = std::move(f);
	e->second = changed;
	return 0;
}

int cuGraphExecDestroy(uintptr_t handle) {
	BEGIN("cuGraphExecDestroy");
	return execs.erase(handle) ? 0 : INVALID_VALUE;
}
