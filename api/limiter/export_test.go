package limiter

// Lines returns how many callers have a line in the queue.
func (q *Queue) Lines() int {
	q.mu.Lock()
	defer q.mu.Unlock()

	return len(q.lines)
}
