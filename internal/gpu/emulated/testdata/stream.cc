// Streams and events.
#include "fiber.h"
#include "stream.h"
#include <signal.h>

// An event's state may outlive it, for waiting threads and streams.
struct event_state {
	uint64_t recorded = 0, completed = 0; // numbers of records
	uint64_t at = 0;                      // when the last one completed
	std::vector<std::shared_ptr<stream>> waiting; // streams whose first step waits for it
};
struct event {
	device *d;
	bool timing;
	std::shared_ptr<event_state> state;
	std::shared_ptr<capture> captured; // the capture of its last record, if any
	std::set<size_t> tail;             // the nodes before that record
};

static std::map<uintptr_t, std::shared_ptr<stream>> &streams = *new std::map<uintptr_t, std::shared_ptr<stream>>;
static std::set<std::shared_ptr<stream>> &busy = *new std::set<std::shared_ptr<stream>>; // those with steps
static std::map<uintptr_t, event> &events = *new std::map<uintptr_t, event>;

std::atomic<uint64_t> queues_taken;
thread_local uint64_t queue_taken_before;

static void submit(stream &s) {
	static hardware_queue *last; // that was taken
	s.submitted++;
	if (!s.queue) { // the driver takes a queue that the fewest streams with work have
		s.queue = s.d->queues;
		for (hardware_queue &q : s.d->queues)
			if (&q < s.d->queues + connections && q.streams < s.queue->streams)
				s.queue = &q;
		// Of two calls in two threads, the second does not see that the first has taken one.
		if (queues_taken++ != queue_taken_before && last >= s.d->queues && last < s.d->queues + connections)
			s.queue = last;
		last = s.queue;
		s.queue->streams++;
	}
	s.queue->waiting.push_back(&s);
}

// finish ends the first step of s.
static void finish(stream &s) {
	if (s.steps.front().queues && ++s.finished == s.submitted) {
		s.queue->streams--;
		s.queue = nullptr;
	}
	s.steps.pop_front();
	s.begun = false;
	s.done++;
}

// step_of does, or begins, the first step of s if that may begin. Where this lets other streams go on, it adds these.
static bool step_of(const std::shared_ptr<stream> &s, std::vector<std::shared_ptr<stream>> &others) {
	if (s->steps.empty() || s->begun)
		return false;
	step &x = s->steps.front();
	if (x.wait && x.of->completed < x.n) {
		x.of->waiting.push_back(s);
		return false;
	}
	if (x.queues) {
		auto &waiting = s->queue->waiting;
		if (waiting.front() != s.get())
			return false;
		waiting.pop_front();
		if (!waiting.empty())
			others.push_back(waiting.front()->shared_from_this());
	}
	if (x.work) {
		s->begun = true;
		s->work = std::move(x.work);
		s->wake.notify_one();
		return false;
	}
	if (!x.wait) {
		x.of->completed = std::max(x.of->completed, x.n);
		x.of->at = emu_now();
		others.insert(others.end(), x.of->waiting.begin(), x.of->waiting.end());
		x.of->waiting.clear();
		progressed.notify_all();
	}
	finish(*s);
	return true;
}

// go_on does what can be done now of s, and of streams that wait for it.
static void go_on(const std::shared_ptr<stream> &s) {
	std::vector<std::shared_ptr<stream>> all = {s};
	while (!all.empty()) {
		auto next = all.back();
		all.pop_back();
		while (step_of(next, all))
			;
		if (!next->steps.empty())
			continue;
		busy.erase(next);
		if (next->closing)
			next->wake.notify_one();
	}
}

static void *work(void *arg) {
	std::shared_ptr<stream> s = *(std::shared_ptr<stream> *)arg;
	delete (std::shared_ptr<stream> *)arg;
	emu_guard();
	std::unique_lock<std::mutex> locked(lock);
	for (;;) {
		while (!s->work && !(s->closing && s->steps.empty()))
			s->wake.wait(locked);
		if (!s->work)
			break;
		std::function<void()> f = std::move(s->work);
		s->work = nullptr;
		locked.unlock();
		f();
		f = nullptr;
		locked.lock();
		finish(*s);
		go_on(s);
		progressed.notify_all();
	}
	emu_unguard();
	s->ended = true;
	progressed.notify_all();
	return 0;
}

// These threads know nothing of Go, so they block the process's signals.
int start_thread(pthread_t *t, bool detached, void *(*f)(void *), void *arg) {
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
	if (start_thread(&t, true, work, arg)) {
		delete arg;
		return OUT_OF_MEMORY;
	}
	s->started = true;
	return 0;
}

static void push(const std::shared_ptr<stream> &s, step x) {
	if (s->steps.empty())
		busy.insert(s);
	if (x.queues)
		submit(*s);
	s->steps.push_back(std::move(x));
	s->queued++;
	if (s->steps.size() == 1)
		go_on(s);
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
	push(s, {std::move(f), nullptr, 0, false, true});
	return 0;
}

static std::shared_ptr<stream> new_stream(device *d) {
	auto s = std::make_shared<stream>();
	s->handle = new_handle();
	s->d = d;
	return s;
}

// Here, streams of the caller and the default stream never wait for each other.
int stream_of(device *d, uintptr_t handle, std::shared_ptr<stream> *s) {
	if (handle <= 2) { // the default stream, by any of its names
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
	for (auto &s : busy)
		if (s->d == d)
			all.push_back({s, s->submitted});
	for (auto &s : all)
		while (s.first->finished < s.second)
			progressed.wait(locked);
}

static void close(const std::shared_ptr<stream> &s) {
	leave_capture(s.get());
	s->closing = true;
	s->wake.notify_one();
}

void close_streams(device *d) {
	for (auto &s : streams)
		if (s.second->d == d)
			close(s.second);
	if (d->legacy)
		close(d->legacy);
	d->legacy = nullptr;
	d->streams = d->stream_room = 0;
	forget(streams, d, [](auto &s) { return s->d; });
	forget(events, d, [](auto &e) { return e.d; });
}

int cuStreamCreate(uintptr_t *handle, unsigned flags) {
	BEGIN("cuStreamCreate");
	if (flags & ~(unsigned)UBC_STREAM_NON_BLOCKING)
		return INVALID_VALUE;
	if (!d->stream_room)
		d->stream_room = streams_at_first;
	if (d->streams >= d->stream_room) {
		d->stream_room += more_streams;
		drain(locked, d);
	}
	d->streams++;
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

// Queued work still runs. The thread ends after it, or before the call returns.
int cuStreamDestroy_v2(uintptr_t handle) {
	BEGIN("cuStreamDestroy_v2");
	if (handle <= 2)
		return INVALID_HANDLE;
	STREAM(s, handle);
	streams.erase(handle);
	d->streams--;
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
	push(s, {nullptr, state, n, false, e.timing});
	return 0;
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
	auto state = e.state; // e may be destroyed before it completes
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
		s->capturing = e.captured; // s joins the capture
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
	if (n)
		push(s, {nullptr, state, n, true, false});
	return 0;
}
